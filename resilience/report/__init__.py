"""Where the time of a run went: the ledger of time. Beside `watch`; nothing below knows it."""
