"""Members: one file a backend, none knows another."""
