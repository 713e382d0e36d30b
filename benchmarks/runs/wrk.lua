-- What benchmarks/runs/wrk.py has wrk send and print: -- BODY_FILE CONTENT_TYPE
function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  wrk.headers["Content-Type"] = args[2]
  file:close()
end

-- Latencies and the duration are in microseconds.
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.status + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "failed": %d, "mean": %.3f, "p50": %.3f, "p90": %.3f, "p99": %.3f}\n',
    summary.requests, summary.duration / 1e6, failed, latency.mean / 1e3,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3
  ))
end
