// BullMQ on Node; BULLMQ names the package, so that two versions stand side by side.
'use strict';

const { Redis } = require('ioredis');
const { Queue, Worker } = require(process.env.BULLMQ);
const { connection, given, main } = require('./common.js');

const options = { connection: connection(given().url) };
const queue = new Queue('bench', options);
const server = new Redis({ ...options.connection, lazyConnect: true });

main({
  add: n => queue.add('x', { n }),
  addMany: numbers => queue.addBulk(numbers.map(n => ({ name: 'x', data: { n } }))),
  info: () => server.info('commandstats'),
  resetInfo: () => server.config('RESETSTAT'),
  work(concurrency, handle, settled) {
    const handler = async job => {
      const wait = handle(job.data.n);
      if (wait) await wait;
      return 1;
    };
    new Worker('bench', handler, { ...options, concurrency }).on('completed', settled);
  },
});
