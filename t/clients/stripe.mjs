// Stripe's client against conf/stripe.conf: one line for each thing it saw.

import Stripe from 'stripe';

const port = process.env.CLIENT_PORT;
const client = (retries) => new Stripe('sk_test_ann', {
    host: '127.0.0.1', port, protocol: 'http', maxNetworkRetries: retries,
    telemetry: false,
});
const charge = (retries, amount, idempotencyKey) => client(retries).charges
    .create({ amount, currency: 'usd' }, { idempotencyKey });

async function tell(what, promise) {
    try {
        const { id, lastResponse } = await promise;
        const { statusCode, headers } = lastResponse;
        console.log(what, statusCode, id, lastResponse.idempotencyKey,
            headers['idempotent-replayed'] ?? '-',
            headers['original-request'] === lastResponse.requestId);
    } catch (error) {
        console.log(what, error.statusCode, error.type, error.code ?? '-');
    }
}

await tell('first:', charge(0, 2000, 'a'));
await tell('retry:', charge(0, 2000, 'a'));
await tell('other amount:', charge(0, 1000, 'a'));
await tell('other amount, with retries:', charge(2, 1000, 'a'));

const slow = tell('slow:', charge(0, 2000, 'slow'));
await new Promise((wake) => setTimeout(wake, 500));
await tell('meanwhile:', charge(0, 2000, 'slow'));
await tell('meanwhile, with retries:', charge(5, 2000, 'slow'));
await slow;
process.exit(0);    // connections may be open yet
