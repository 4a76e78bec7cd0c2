"""Hosts that one machine plays, with names, addresses and OpenSSH servers of their own."""
