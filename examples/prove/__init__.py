"""Proof that no row is lost on your hosts: train, kill a host, go on with other ranks, audit.

    examples.prove.train   one rank; torchrun starts it on each of your hosts
    examples.prove         the whole proof with two hosts on this machine: `make prove`

docs/how-to/prove.md is its page.
"""
