//! Notices and warnings go where a Python program expects them: to the logger `rankpact`.

use crate::wait::attached;
use pyo3::prelude::*;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;

/// Sends everything that is said from now on to Python's `logging`.
pub(crate) fn to_logging() {
    // Fails only if that has been done.
    let _ = tracing::subscriber::set_global_default(registry().with(Logging));
}

struct Logging;

impl<S: Subscriber> Layer<S> for Logging {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.target().starts_with("rankpact") {
            return;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        let method = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        };
        attached(|py| {
            let log = || -> PyResult<()> {
                let logger = py
                    .import("logging")?
                    .call_method1("getLogger", ("rankpact",))?;
                // Its text is no format.
                logger.call_method1(method, ("%s", message.0.as_str()))?;
                Ok(())
            };
            if let Err(error) = log() {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// The text of an event, and its fields.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.0, "{value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}
