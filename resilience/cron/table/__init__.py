"""Cron's table and arithmetic: expression, table, due."""
