"""One measurement and many: loads, runners, interleaved rounds, a session, what is stored."""
