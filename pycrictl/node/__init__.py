"""What the node itself tells: container logs, the journal, the kubelet's files, namespaces."""
