"""Everything that runs jobs: small services around one pump."""
