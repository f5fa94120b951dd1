"""Images as archives: OCI image layouts and what ``docker save`` writes."""
