"""Ranks that exchange bytes: one interface, in one process (threads) and over MPI."""
