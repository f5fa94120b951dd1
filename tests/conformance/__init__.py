"""What an endpoint of the CRI must do to offer the proposals; black box. See README.md here."""
