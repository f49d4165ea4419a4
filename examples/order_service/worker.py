"""The worker service: relays the outbox and charges orders, until SIGTERM."""

from models import PREFIX, create_tables, engine, outbox

import toril
from tasks import app
from toril.outbox import Relay

if __name__ == "__main__":
    create_tables()
    toril.run(app, Relay(engine, outbox, prefix=PREFIX, confirm=True))
