//! A moshi-server configuration as it is: its modules, the files that they name, and the models that these are here.

pub(super) mod convert;
pub(super) mod files;
pub(super) mod folder;
pub(super) mod modules;
pub(super) mod open;
pub(super) mod py;
pub(super) mod voices;
