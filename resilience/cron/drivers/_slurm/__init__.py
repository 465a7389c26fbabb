"""The chain of small jobs that makes the ticks on clusters that offer only a queue."""
