// The subject of a JSON Web Token, if its signature (HS256) and its times are
// valid; else "".

import crypto from 'crypto';
import fs from 'fs';

const KEY = '/etc/nginx/jwt.key';

function decode(part) {
    return JSON.parse(Buffer.from(part, 'base64url').toString());
}

// Takes the same time for any two strings of one length.
function same(a, b) {
    let difference = a.length ^ b.length;
    for (let i = 0; i < a.length; i++) {
        difference |= a.charCodeAt(i) ^ b.charCodeAt(i % (b.length || 1));
    }
    return difference === 0;
}

function check(token) {
    const parts = token.split('.');
    if (parts.length !== 3 || decode(parts[0]).alg !== 'HS256') {
        return '';
    }

    const hmac = crypto.createHmac('sha256', fs.readFileSync(KEY));
    hmac.update(parts[0] + '.' + parts[1]);
    if (!same(hmac.digest('base64url'), parts[2])) {
        return '';
    }

    const claims = decode(parts[1]);
    const now = Date.now() / 1000;
    if (!(claims.exp > now) || claims.nbf > now) {
        return '';
    }

    return typeof claims.sub === 'string' ? claims.sub : '';
}

function subject(r) {
    const bearer = /^Bearer +(\S+)$/i.exec(r.headersIn.Authorization || '');

    try {
        return bearer ? check(bearer[1]) : '';
    } catch (e) {
        return '';
    }
}

export default { subject };
