"""The async client: queues, flows and events over one connection to the server."""
