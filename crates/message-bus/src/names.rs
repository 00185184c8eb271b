//! Topics and consumer groups, and the prefix that keeps test runs apart.

use std::fmt;

/// The topics of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Reservation front and outbox scanner to order consumer.
    OrderRequest,
    /// PostgreSQL's outbox to compensation worker and downstream services.
    OrderEvent,
    /// Payment side to order consumer.
    PaymentEvent,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 3] = [Self::OrderRequest, Self::OrderEvent, Self::PaymentEvent];

    /// The topic's name, without a namespace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OrderRequest => "seckill-order-request",
            Self::OrderEvent => "seckill-order-event",
            Self::PaymentEvent => "seckill-payment-event",
        }
    }

    /// Which topic a full name stands for in a namespace; none for any other name.
    #[must_use]
    pub fn named(full: &str, namespace: &str) -> Option<Self> {
        let names = Names::new(namespace);
        Self::ALL
            .into_iter()
            .find(|topic| names.topic(*topic) == full)
    }

    /// How many queues it has, and with that how many consumers can share its work.
    #[must_use]
    pub const fn queues(self) -> u32 {
        match self {
            Self::OrderRequest => 16,
            Self::OrderEvent | Self::PaymentEvent => 8,
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The consumer groups of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Turns order requests into orders.
    OrderConsumer,
    /// Releases what did not become an order.
    CompensationWorker,
}

impl Group {
    /// Every group.
    pub const ALL: [Self; 2] = [Self::OrderConsumer, Self::CompensationWorker];

    /// The group's name, without a namespace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OrderConsumer => "order-consumer",
            Self::CompensationWorker => "compensation-worker",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Full names below a prefix. The broker has namespaces of its own, but they change names on the way
/// in and out; a plain prefix shows the same name in every tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(namespace: &str) -> Self {
        let prefix = if namespace.is_empty() {
            String::new()
        } else {
            format!("{namespace}-")
        };
        Self { prefix }
    }

    pub(crate) fn topic(&self, topic: Topic) -> String {
        format!("{}{}", self.prefix, topic.name())
    }

    pub(crate) fn group(&self, group: Group) -> String {
        format!("{}{}", self.prefix, group.name())
    }

    /// The topic to which the broker moves what a group kept refusing.
    pub(crate) fn dead_letter_topic(&self, group: Group) -> String {
        format!("%DLQ%{}", self.group(group))
    }

    /// The topic in which the broker offers a group's redeliveries.
    pub(crate) fn retry_topic(&self, group: Group) -> String {
        format!("%RETRY%{}", self.group(group))
    }

    /// The group that drains a group's dead letters.
    pub(crate) fn dead_letter_group(&self, group: Group) -> String {
        format!("{}-dlq", self.group(group))
    }

    /// Where the broker offers redeliveries of a group's dead letters.
    pub(crate) fn dead_letter_retry_topic(&self, group: Group) -> String {
        format!("%RETRY%{}", self.dead_letter_group(group))
    }

    /// Producers are listed by the broker under a group, too.
    pub(crate) fn producer_group(&self) -> String {
        format!("{}seckill-producer", self.prefix)
    }

    pub(crate) fn admin_group(&self) -> String {
        format!("{}seckill-admin", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn production_names_carry_no_prefix_and_tests_are_kept_apart_by_one() {
        let plain = Names::new("");
        assert_eq!(plain.topic(Topic::OrderRequest), "seckill-order-request");
        assert_eq!(plain.group(Group::OrderConsumer), "order-consumer");
        assert_eq!(
            plain.dead_letter_topic(Group::OrderConsumer),
            "%DLQ%order-consumer"
        );
        assert_eq!(
            plain.dead_letter_group(Group::OrderConsumer),
            "order-consumer-dlq"
        );
        let topic = Topic::named("t1-seckill-order-event", "t1");
        assert_eq!(topic, Some(Topic::OrderEvent));
        for (name, namespace) in [
            ("seckill-order-event", "t1"),
            ("t1-seckill-order-event", ""),
            ("t1-seckill-order-event", "t"),
            ("%DLQ%order-consumer", ""),
        ] {
            assert_eq!(Topic::named(name, namespace), None, "{name} in {namespace}");
        }
        let named = Names::new("t1");
        assert_eq!(named.topic(Topic::OrderEvent), "t1-seckill-order-event");
        assert_eq!(
            named.retry_topic(Group::CompensationWorker),
            "%RETRY%t1-compensation-worker"
        );
    }
}
