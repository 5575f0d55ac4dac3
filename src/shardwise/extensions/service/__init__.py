"""Batch servers: batches are built on other machines, by the same builder, behind a socket.

A server keeps nothing that a client needs: a request names its batch completely, so any server may
answer it, and the work of one that dies goes to another (I1, I5).
"""
