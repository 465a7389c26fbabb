"""Alerts: incidents and the policy that decides on notifications, the outbox, and the channels that deliver."""
