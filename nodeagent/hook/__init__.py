"""The node's native parts: C sources, and beside them what `nodeagent.hook.build` made."""
