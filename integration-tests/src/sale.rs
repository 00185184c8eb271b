//! Activities, made as an operator makes them.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use seckill_proto::v1::ReserveRequest;
use seckill_test_support::OrFail;

use crate::ctl::CtlOutput;
use crate::sandbox::Sandbox;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// What is to be sold, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    activity_id: String,
    sku_id: String,
    version: Option<u64>,
    terms: Vec<(String, String)>,
}

impl Plan {
    /// An activity of its own with so many units: one bucket, open now and for an hour.
    #[must_use]
    pub fn new(stock: u64) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let plan = Self {
            activity_id: format!("act-{number}"),
            sku_id: "sku-1".to_owned(),
            version: None,
            terms: Vec::new(),
        };
        // An open reservation is looked at, and an undecided one given up, within a test's patience.
        plan.term("stock", stock)
            .term("reservation-ttl-ms", 5_000)
            .term("patience-ms", 3_000)
    }

    /// Another version of an activity that exists.
    #[must_use]
    pub fn next_version_of(sale: &Sale, stock: u64) -> Self {
        Self {
            activity_id: sale.activity_id.clone(),
            sku_id: sale.sku_id.clone(),
            version: Some(sale.version + 1),
            ..Self::new(stock)
        }
    }

    /// Sets the activity's and the SKU's id.
    #[must_use]
    pub fn ids(mut self, activity_id: &str, sku_id: &str) -> Self {
        activity_id.clone_into(&mut self.activity_id);
        sku_id.clone_into(&mut self.sku_id);
        self
    }

    /// Sets the version; without one it is one more than the newest.
    #[must_use]
    pub const fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Splits the stock.
    #[must_use]
    pub fn buckets(self, count: u32) -> Self {
        self.term("buckets", count)
    }

    /// Sets any flag of `seckillctl activity create`, by its name without hyphens in front.
    #[must_use]
    pub fn term(mut self, flag: &str, value: impl ToString) -> Self {
        let flag = format!("--{flag}");
        self.terms.retain(|(name, _)| *name != flag);
        self.terms.push((flag, value.to_string()));
        self
    }
}

/// An activity that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    /// Its id.
    pub activity_id: String,
    /// What it sells.
    pub sku_id: String,
    /// Its version.
    pub version: u64,
}

impl Sale {
    /// A purchase of one unit.
    #[must_use]
    pub fn reserve(&self, user_id: &str, request_id: &str) -> ReserveRequest {
        ReserveRequest {
            activity_id: self.activity_id.clone(),
            sku_id: self.sku_id.clone(),
            user_id: user_id.to_owned(),
            request_id: request_id.to_owned(),
            activity_version: self.version,
            quantity: 1,
            activity_token: String::new(),
            repeat: false,
        }
    }

    /// A bucket's key, by the contract and not by the code under test.
    #[must_use]
    pub fn key(&self, bucket: u32, suffix: &str) -> String {
        let Self {
            activity_id,
            sku_id,
            version,
        } = self;
        format!("seckill:{{a:{activity_id}:s:{sku_id}:v:{version}:b:{bucket}}}:{suffix}")
    }

    /// A condition on the three columns that name it in every table.
    #[must_use]
    pub fn sql(&self) -> String {
        format!(
            "(activity_id = '{}' AND sku_id = '{}' AND version = {})",
            self.activity_id, self.sku_id, self.version
        )
    }
}

impl Sandbox {
    /// Creates an activity in PostgreSQL alone.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn create(&self, plan: &Plan) -> Sale {
        let version = plan.version.map(|version| version.to_string());
        let mut arguments = vec![
            "activity",
            "create",
            "--activity-id",
            &plan.activity_id,
            "--sku-id",
            &plan.sku_id,
        ];
        if let Some(version) = &version {
            arguments.extend(["--activity-version", version]);
        }
        for (flag, value) in &plan.terms {
            arguments.extend([flag.as_str(), value.as_str()]);
        }
        let created = self.ctl_ok(&arguments).await;
        Sale {
            activity_id: plan.activity_id.clone(),
            sku_id: plan.sku_id.clone(),
            version: find_number(&created, "version")
                .with_context(|| format!("no version in {created}"))
                .or_fail("creating an activity"),
        }
    }

    /// Creates, preheats and opens an activity.
    ///
    /// # Panics
    ///
    /// When one of the steps is refused.
    pub async fn open(&self, plan: &Plan) -> Sale {
        let sale = self.create(plan).await;
        for step in ["preheat", "open"] {
            let done = self.step(&sale, step).await;
            assert_eq!(done.code, Some(0), "{step}: {done:?}");
        }
        sale
    }

    /// Runs `seckillctl activity <step>`: `preheat`, `open`, `pause`, `resume`, `close` or `show`.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub async fn step(&self, sale: &Sale, step: &str) -> CtlOutput {
        self.about(sale, &["activity", step]).await
    }

    /// Runs `seckillctl audit` with further flags.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub async fn audit(&self, sale: &Sale, flags: &[&str]) -> CtlOutput {
        let arguments: Vec<&str> = std::iter::once("audit")
            .chain(flags.iter().copied())
            .collect();
        self.about(sale, &arguments).await
    }

    async fn about(&self, sale: &Sale, command: &[&str]) -> CtlOutput {
        let version = sale.version.to_string();
        let scope = [
            "--activity-id",
            &sale.activity_id,
            "--sku-id",
            &sale.sku_id,
            "--activity-version",
            &version,
        ];
        let arguments: Vec<&str> = command.iter().chain(&scope).copied().collect();
        self.ctl(&arguments).await
    }
}

/// A number by its name, at whatever depth the output has it.
fn find_number(value: &serde_json::Value, name: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(fields) => fields
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| fields.values().find_map(|inner| find_number(inner, name))),
        _ => None,
    }
}
