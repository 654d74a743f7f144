"""Examining a host for everything that a kernel there depends on."""
