//! Work on the desk from async code.
//!
//! Promises: runs on a blocking thread; a failure is logged.
//!
//! Never: opens a desk in a state folder that has none, unless asked to work on it.

use std::path::Path;

use tollgate::event::Event;

use super::Daemon;
use crate::desk::{Desk, DeskError};

impl Daemon {
    /// Works on the desk on a blocking thread. `None` = it failed, which is logged.
    pub(crate) async fn on_desk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Desk) -> Result<T, DeskError> + Send + 'static,
    ) -> Option<T> {
        let daemon = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&*daemon.desk()?)).await;
        match done.ok()? {
            Ok(done) => Some(done),
            Err(error) => {
                let why = error.in_words().into();
                self.registry().events().emit(Event::DeskFailed { why });
                None
            }
        }
    }

    /// Is there a desk, open or in the state folder? Blocks on the folder.
    pub(crate) fn has_desk_file(&self) -> bool {
        self.has_desk() || Desk::exists(Path::new(&self.loaded().config.state_dir))
    }
}
