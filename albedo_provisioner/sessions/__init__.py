"""Sessions: named uses of one kernel each, for programs that run code on a user's hosts."""
