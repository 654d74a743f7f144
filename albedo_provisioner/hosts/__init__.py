"""Reaching hosts: transports, the shared connections, and how our files get there."""
