-- A contender: records in a shared dictionary, as such scripts are usually
-- written.  The response is not held back until it is stored.

local records = ngx.shared.records
local dict = {}


function dict.admit(ttl)
    local key = ngx.var.http_idempotency_key

    if not key then
        return
    end

    ngx.req.read_body()

    local name = key .. ngx.var.uri
    local print = ngx.md5(ngx.req.get_body_data() or "")

    if records:add(name, "p" .. print, ttl) then
        ngx.ctx.name, ngx.ctx.print, ngx.ctx.pieces = name, print, {}
        return
    end

    local kept = records:get(name)

    if not kept or kept:sub(1, 1) == "p" then
        return ngx.exit(409)
    end

    if kept:sub(2, 33) ~= print then
        return ngx.exit(422)
    end

    ngx.header["Content-Type"] = "text/plain"
    ngx.header["Content-Length"] = #kept - 33
    ngx.print(kept:sub(34))
    return ngx.exit(200)
end


function dict.keep(ttl)
    local pieces = ngx.ctx.pieces

    if not pieces then
        return
    end

    pieces[#pieces + 1] = ngx.arg[1]

    if ngx.arg[2] then
        records:set(ngx.ctx.name,
            "c" .. ngx.ctx.print .. table.concat(pieces), ttl)
    end
end


return dict
