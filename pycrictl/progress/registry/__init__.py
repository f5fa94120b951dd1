"""What registries say of images."""
