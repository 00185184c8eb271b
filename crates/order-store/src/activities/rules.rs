//! What may be created and which moves are allowed, without any I/O.

use seckill_state_machine::{Activity, ActivitySettings, ActivityState, Scope};

use crate::Error;

/// Units a user may hold, until cumulative limits exist.
const LIMIT_PER_USER: u32 = 1;

/// Most units of a version: what Lua's numbers, which the scripts count with, hold exactly.
const STOCK_MAX: u64 = (1 << 53) - 1;

/// What makes no sense in the settings, before the table's constraints would say so with less words.
pub(super) fn check(settings: &ActivitySettings) -> Result<(), Error> {
    if settings.limit_per_user != LIMIT_PER_USER {
        return Err(Error::invalid(
            "limit_per_user",
            "only 1 is supported until cumulative limits exist",
        ));
    }
    if settings.starts_at_ms > settings.ends_at_ms {
        return Err(Error::invalid("ends_at_ms", "lies before the start"));
    }
    if settings.retention_until_ms <= settings.ends_at_ms {
        return Err(Error::invalid(
            "retention_until_ms",
            "does not lie after the end",
        ));
    }
    // A reservation whose life ends after its keys' is refused by the script, so an activity that
    // could only make such ones would sell nothing.
    if settings.starts_at_ms + settings.reservation_ttl_ms >= settings.retention_until_ms {
        return Err(Error::invalid(
            "reservation_ttl_ms",
            "outlasts the retention from the first instant of the sale",
        ));
    }
    for (field, value) in [
        ("reservation_ttl_ms", settings.reservation_ttl_ms),
        ("patience_ms", settings.patience_ms),
    ] {
        if value <= 0 {
            return Err(Error::invalid(field, "must be positive"));
        }
    }
    if settings.total_stock > STOCK_MAX {
        return Err(Error::invalid("total_stock", "is above 2^53 - 1"));
    }
    Ok(())
}

/// Names every setting that differs, with both values.
pub(super) fn differences(stored: &ActivitySettings, asked: &ActivitySettings) -> Vec<String> {
    let rows: [(&str, i128, i128); 10] = [
        (
            "starts_at_ms",
            stored.starts_at_ms.get().into(),
            asked.starts_at_ms.get().into(),
        ),
        (
            "ends_at_ms",
            stored.ends_at_ms.get().into(),
            asked.ends_at_ms.get().into(),
        ),
        (
            "retention_until_ms",
            stored.retention_until_ms.get().into(),
            asked.retention_until_ms.get().into(),
        ),
        (
            "total_stock",
            stored.total_stock.into(),
            asked.total_stock.into(),
        ),
        (
            "bucket_count",
            stored.bucket_count.get().into(),
            asked.bucket_count.get().into(),
        ),
        (
            "limit_per_user",
            stored.limit_per_user.into(),
            asked.limit_per_user.into(),
        ),
        (
            "max_quantity",
            stored.max_quantity.get().into(),
            asked.max_quantity.get().into(),
        ),
        (
            "reservation_ttl_ms",
            stored.reservation_ttl_ms.into(),
            asked.reservation_ttl_ms.into(),
        ),
        (
            "patience_ms",
            stored.patience_ms.into(),
            asked.patience_ms.into(),
        ),
        (
            "secret_version",
            stored.secret_version.into(),
            asked.secret_version.into(),
        ),
    ];
    rows.into_iter()
        .filter(|(_, stored, asked)| stored != asked)
        .map(|(name, stored, asked)| format!("{name} is {stored}, not {asked}"))
        .collect()
}

/// Whether there is a step to take; an error when it may not be taken.
pub(super) fn permitted(
    activity: &Activity,
    from: &[ActivityState],
    to: ActivityState,
) -> Result<bool, Error> {
    let state = activity.state;
    let scope = &activity.settings.scope;
    if !from.contains(&state) {
        let words: Vec<&str> = from.iter().map(|state| state.as_str()).collect();
        return Err(Error::Conflict(format!(
            "activity {scope} is {state}, not {}",
            words.join(" or ")
        )));
    }
    if state == to {
        return Ok(false);
    }
    if state.may_become(to) {
        Ok(true)
    } else {
        Err(Error::Conflict(format!(
            "activity {scope} is {state} and cannot become {to}"
        )))
    }
}

pub(super) fn refuse_second_version(versions: &[Activity], scope: &Scope) -> Result<(), Error> {
    let other = versions.iter().find(|activity| {
        activity.state == ActivityState::Active && activity.settings.scope.version != scope.version
    });
    match other {
        Some(other) => Err(Error::Conflict(format!(
            "activity {} is ACTIVE; versions are opened one at a time, so close it before opening {scope}",
            other.settings.scope
        ))),
        None => Ok(()),
    }
}
