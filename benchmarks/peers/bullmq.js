// BullMQ on Node; BULLMQ names the package, so that two versions stand side by side.
'use strict';

const { Queue, Worker } = require(process.env.BULLMQ);
const { connection, given, main } = require('./common.js');

const options = { connection: connection(given().url) };
const queue = new Queue('bench', options);

main({
  add: n => queue.add('x', { n }),
  addMany: numbers => queue.addBulk(numbers.map(n => ({ name: 'x', data: { n } }))),
  work(concurrency, handle, settled) {
    const handler = async job => {
      handle(job.data.n);
      return 1;
    };
    new Worker('bench', handler, { ...options, concurrency }).on('completed', settled);
  },
});
