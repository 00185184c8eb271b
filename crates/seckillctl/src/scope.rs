//! Which activity version a command is about.

use std::collections::BTreeSet;

use clap::Args;
use seckill_activity_control::Control;
use seckill_state_machine::{Activity, ActivityId, ActivityState, ActivityVersion, Scope, SkuId};

use crate::exit::Failure;
use crate::values::version;

/// An activity, and what narrows it down.
#[derive(Debug, Clone, Args)]
pub struct ScopeArgs {
    /// The activity
    #[arg(long, value_name = "ID")]
    pub activity_id: ActivityId,

    /// The SKU; needed only when the activity sells several
    #[arg(long, value_name = "ID")]
    pub sku_id: Option<SkuId>,

    /// The version; when not given, the newest, or to pause, resume and close the one on sale
    #[arg(long, value_name = "N", value_parser = version)]
    pub activity_version: Option<ActivityVersion>,
}

/// One version of what parked messages and differences belong to, or any.
#[derive(Debug, Clone, Args)]
pub struct VersionArgs {
    /// The activity that they belong to, together with SKU and version
    #[arg(long, value_name = "ID", requires_all = ["sku_id", "activity_version"])]
    activity_id: Option<ActivityId>,

    /// The SKU
    #[arg(long, value_name = "ID", requires = "activity_id")]
    sku_id: Option<SkuId>,

    /// The version
    #[arg(long, value_name = "N", value_parser = version, requires = "activity_id")]
    activity_version: Option<ActivityVersion>,
}

impl VersionArgs {
    /// The version; none when any will do.
    #[must_use]
    pub fn scope(&self) -> Option<Scope> {
        Some(Scope {
            activity_id: self.activity_id.clone()?,
            sku_id: self.sku_id.clone()?,
            version: self.activity_version?,
        })
    }
}

impl ScopeArgs {
    /// Every version that is meant, newest first.
    ///
    /// # Errors
    /// Store errors, and a failure when there is none.
    pub async fn all(&self, control: &Control) -> anyhow::Result<Vec<Activity>> {
        let all = control.activities(&self.activity_id).await?;
        let meant: Vec<Activity> = all
            .into_iter()
            .filter(|activity| self.means(&activity.settings.scope))
            .collect();
        anyhow::ensure!(
            !meant.is_empty(),
            "there is no such activity: {}",
            self.words()
        );
        Ok(meant)
    }

    /// The one version that is meant: the given or the newest one of the only SKU.
    ///
    /// # Errors
    /// Store errors, a failure when there is none, and a wrong setting when the SKU is not clear.
    pub async fn one(&self, control: &Control) -> anyhow::Result<Scope> {
        let all = self.all(control).await?;
        self.only_newest(all)
    }

    fn only_newest(&self, all: Vec<Activity>) -> anyhow::Result<Scope> {
        let newest = all
            .iter()
            .map(|activity| activity.settings.scope.version)
            .max();
        let mut newest = all
            .into_iter()
            .map(|activity| activity.settings.scope)
            .filter(|scope| Some(scope.version) == newest);
        match (newest.next(), newest.next()) {
            (Some(scope), None) => Ok(scope),
            _ => Err(Failure::Setting {
                setting: "--sku-id",
                reason: format!("{} sells several SKUs, name one", self.activity_id),
            }
            .into()),
        }
    }

    /// The one version that is meant of those that can be taken off sale: the given one, the one on
    /// sale, or the only one that is not closed; the newest when all are.
    ///
    /// # Errors
    /// As [`ScopeArgs::one`], and a wrong setting when the version is not clear.
    pub async fn one_on_sale(&self, control: &Control) -> anyhow::Result<Scope> {
        let mut all = self.all(control).await?;
        if self.activity_version.is_none() {
            all = live(all).map_err(|versions| Failure::Setting {
                setting: "--activity-version",
                reason: format!("versions {versions} are not closed, name one"),
            })?;
        }
        self.only_newest(all)
    }

    fn means(&self, scope: &Scope) -> bool {
        self.sku_id
            .as_ref()
            .is_none_or(|sku_id| *sku_id == scope.sku_id)
            && self
                .activity_version
                .is_none_or(|version| version == scope.version)
    }

    fn words(&self) -> String {
        let mut text = self.activity_id.to_string();
        if let Some(sku_id) = &self.sku_id {
            text.push_str(&format!(", SKU {sku_id}"));
        }
        if let Some(version) = self.activity_version {
            text.push_str(&format!(", version {version}"));
        }
        text
    }
}

/// Those on sale, or else those that are not closed, or else all of them, provided that they are of
/// one version; the versions when they are not.
fn live(all: Vec<Activity>) -> Result<Vec<Activity>, String> {
    use ActivityState::{Active, Paused, Prepared};
    for states in [[Active, Paused].as_slice(), &[Prepared]] {
        let found: Vec<Activity> = all
            .iter()
            .filter(|activity| states.contains(&activity.state))
            .cloned()
            .collect();
        let versions: BTreeSet<ActivityVersion> = found
            .iter()
            .map(|activity| activity.settings.scope.version)
            .collect();
        match versions.len() {
            0 => {}
            1 => return Ok(found),
            _ => {
                let names: Vec<String> = versions.iter().map(ToString::to_string).collect();
                return Err(names.join(", "));
            }
        }
    }
    Ok(all)
}
