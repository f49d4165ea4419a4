"""The tables of the service, those of Toril among them."""

from __future__ import annotations

import os

from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from toril.idempotency import idempotency_table
from toril.outbox import Outbox

PREFIX = os.environ.get("ORDERS_PREFIX", "bull")

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///orders.db"))
open_session: sessionmaker[Session] = sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(100))
    amount: Mapped[int]
    status: Mapped[str] = mapped_column(String(20), default="new")
    receipt: Mapped[str | None] = mapped_column(String(100))


class Charge(Base):
    """What the bank was asked to do: one row per charge or refund, so that you can count them."""

    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    amount: Mapped[int]
    key: Mapped[str] = mapped_column(String(255))


outbox = Outbox(Base.metadata)
records = idempotency_table(Base.metadata)


def create_tables() -> None:
    """For the example; a real service has migrations."""
    Base.metadata.create_all(engine)
