// What the Node programs share: their arguments, their measures' frame, their one line of output.
'use strict';

const WARM_UP = 100;
const CHUNK = 1000;
const TASKS = 100;

function given() {
  const options = { measure: process.argv[2], concurrency: 100 };
  for (let i = 3; i < process.argv.length; i += 2) {
    options[process.argv[i].slice(2)] = process.argv[i + 1];
  }
  options.jobs = Number(options.jobs);
  options.concurrency = Number(options.concurrency);
  return options;
}

function connection(url) {
  const parts = new URL(url);
  return {
    host: parts.hostname,
    port: Number(parts.port || 6379),
    db: Number(parts.pathname.slice(1) || 0),
    username: parts.username || undefined,
    password: parts.password || undefined,
    maxRetriesPerRequest: null,
  };
}

async function fromTasks(jobs, add) {
  let next = 0;
  const producer = async () => {
    while (next < jobs) await add(next++);
  };
  await Promise.all(Array.from({ length: TASKS }, producer));
}

const now = () => performance.timeOrigin + performance.now();
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

// What one call of a script took on the server, on average.
function serverTime(info) {
  const [, calls, usec] = info.match(/cmdstat_evalsha:calls=(\d+),usec=(\d+)/);
  return Number(usec) / Number(calls);
}

// queue: { add(number), addMany(numbers)?, work(concurrency, handle, settled), info()?, resetInfo()? }
async function main(queue) {
  const { measure, jobs, concurrency } = given();
  const addMany = queue.addMany || (numbers => fromTasks(numbers.length, i => queue.add(numbers[i])));
  const fill = async count => {
    for (let start = 0; start < count; start += CHUNK) {
      await addMany(Array.from({ length: Math.min(CHUNK, count - start) }, (_, i) => start + i));
    }
  };
  const rate = async work => {
    const started = performance.now();
    await work();
    return { rate: (jobs / (performance.now() - started)) * 1000 };
  };
  const drain = (concurrency, handle) => rate(() => new Promise(resolve => {
    let settled = 0;
    queue.work(concurrency, handle, () => {
      if (++settled === jobs) resolve();
    });
  }));
  const smallDrain = async (concurrency, handle) => {
    await fill(jobs);
    await queue.resetInfo();
    const figures = await drain(concurrency, handle);
    return { ...figures, server_us: serverTime(await queue.info()) };
  };
  const measures = {
    add: async () => {
      await fill(WARM_UP);
      return rate(async () => {
        for (let i = 0; i < jobs; i++) await queue.add(i);
      });
    },
    add_bulk: async () => {
      await fill(WARM_UP);
      return rate(() => fill(jobs));
    },
    add_concurrent: async () => {
      await fill(WARM_UP);
      return rate(() => fromTasks(jobs, queue.add));
    },
    drain: async () => {
      await fill(jobs);
      return drain(concurrency, () => {});
    },
    drain_1: () => smallDrain(1, () => {}),
    drain_10: () => smallDrain(10, () => {}),
    drain_5ms: () => smallDrain(concurrency, () => sleep(5)),
    latency: async () => {
      const seen = [];
      let arrived;
      queue.work(10, sentAt => {
        seen.push(now() - sentAt);
        arrived();
      }, () => {});
      await sleep(1000);
      const warmUp = WARM_UP / 10;
      for (let i = 0; i < warmUp + jobs; i++) {
        const arrival = new Promise(resolve => (arrived = resolve));
        await queue.add(now());
        await arrival;
        await sleep(10);
      }
      const ordered = seen.slice(warmUp).sort((a, b) => a - b);
      return { p50: ordered[jobs >> 1], p99: ordered[Math.floor(jobs * 0.99)] };
    },
  };
  // What a queue with groups drains is compared with our lanes.
  measures.lanes = measures.many_lanes = measures.drain;
  const figures = await measures[measure]();
  console.log(JSON.stringify(figures));
  process.exit(0);
}

module.exports = { connection, given, main };
