"""The dashboard: pages for people, made from the contract."""
