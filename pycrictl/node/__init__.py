"""What the node itself reports: container logs, the journal, the kubelet's files, namespaces."""
