//! The message bus: plain types at the edge, RocketMQ behind them.
