"""dramatiq: threads instead of a loop, so it has its own measures; eight worker threads."""

import threading
import time

import dramatiq
from clock import TASKS, WARM_UP, Stopwatch, arguments, finish, latency
from dramatiq.brokers.redis import RedisBroker

handle = None


def perform(number):
    handle(number)


def add(broker, actor, given):
    send(actor, range(WARM_UP))
    watch = Stopwatch()
    send(actor, range(given.jobs))
    return {"rate": watch.rate(given.jobs)}


def add_concurrent(broker, actor, given):
    send(actor, range(WARM_UP))
    numbers = range(given.jobs)
    slices = (numbers[start::TASKS] for start in range(TASKS))
    threads = [threading.Thread(target=send, args=(actor, each)) for each in slices]
    watch = Stopwatch()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"rate": watch.rate(given.jobs)}


def drain(broker, actor, given):
    global handle
    send(actor, range(given.jobs))
    handled = 0
    lock = threading.Lock()
    all_ran = threading.Event()

    def handle(number):
        nonlocal handled
        with lock:
            handled += 1
            if handled == given.jobs:
                all_ran.set()

    watch = Stopwatch()
    dramatiq.Worker(broker, worker_threads=8).start()
    all_ran.wait()
    return {"rate": watch.rate(given.jobs)}


def pick_up(broker, actor, given):
    global handle
    seen = []
    arrived = threading.Event()

    def handle(sent_at):
        seen.append(time.time() - sent_at)
        arrived.set()

    dramatiq.Worker(broker, worker_threads=8).start()
    time.sleep(1)
    for _ in range(WARM_UP // 10 + given.jobs):
        arrived.clear()
        actor.send(time.time())
        arrived.wait()
        time.sleep(0.01)
    return latency(seen[WARM_UP // 10 :])


def send(actor, numbers):
    for number in numbers:
        actor.send(number)


MEASURES = {"add": add, "add_concurrent": add_concurrent, "drain": drain, "latency": pick_up}


def main():
    given = arguments(MEASURES)
    broker = RedisBroker(url=given.url)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(perform, actor_name="x", broker=broker)
    finish(**MEASURES[given.measure](broker, actor, given))


if __name__ == "__main__":
    main()
