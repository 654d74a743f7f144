"""What makes folders on several hosts one project: memory on this machine, links between workspaces, their context."""
