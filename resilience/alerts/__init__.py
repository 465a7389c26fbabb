"""Who is told what, when: policy, ledger, outbox."""
