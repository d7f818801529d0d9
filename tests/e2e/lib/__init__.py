"""What the end-to-end tests share: clusters of real processes, clients, loads, networks and faults."""
