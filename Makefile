.PHONY: help demo up down test soak lint ci fmt bench model chaos
.DEFAULT_GOAL := help

help:
	@echo "make demo   one sale from nothing to the audit (ARGS=... go to 'seckillctl sale run')"
	@echo "make up     start Redis, PostgreSQL and RocketMQ on loopback, with schema and topics"
	@echo "make down   stop them and the services (WIPE=1 removes their data too)"
	@echo "make test   every test (ARGS=... go to nextest)"
	@echo "make soak   the tests whose faults last for minutes, at full length (three quarters of an hour)"
	@echo "make lint   every static check"
	@echo "make bench  figures of the parts that have some (debug profile, real servers)"
	@echo "make model  search the protocol for longer (MODEL_MINUTES=10), with and without each safeguard"
	@echo "make chaos  a sale under faults, and the check of what is left (CHAOS_SECONDS, CHAOS_SEED)"
	@echo "make ci     what a fresh machine runs: lint, test, clean up"
	@echo "make fmt    format the Rust code"

demo:
	@scripts/demo $(ARGS)

up:
	@scripts/up

down:
	@deploy/local/stack down $(if $(WIPE),--wipe)

test:
	@scripts/test $(ARGS)

soak:
	@SECKILL_SOAK=1 NEXTEST_PROFILE=soak scripts/test $(ARGS)

lint:
	@scripts/lint

ci:
	@bash .ci/run

fmt:
	@cargo fmt --all

bench:
	@scripts/bench

model:
	@scripts/model $(ARGS)

chaos:
	@scripts/chaos $(ARGS)
