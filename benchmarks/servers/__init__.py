"""Who is measured: the tables of servers and peers, and the place where they stand."""
