-- A content handler that does its work by a subrequest, or hands it on where
-- Lua has none.
if ngx.req.http_version() == 2 then
    return ngx.exec("/part")
end

local told = ngx.location.capture("/part", {method = ngx.HTTP_POST})

if told.truncated then
    return ngx.exit(502)
end

ngx.status = told.status

for _, name in ipairs({"Content-Type", "Location", "X-Execution", "X-Accel-Idempotency"}) do
    ngx.header[name] = told.header[name]
end

ngx.header.content_length = #told.body
ngx.print(told.body)
