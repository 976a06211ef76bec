//! Where a server keeps jobs, out of its settings.

use voce_server::{JOB_CHECKPOINT, JOB_KEEP, JobsOptions, JobsPlace};

use super::settings::{Settings, seconds};
use crate::failure::{Failure, Outcome};

/// What the settings say of jobs; none where they say nothing.
pub(super) fn options(settings: &Settings) -> Outcome<Option<JobsOptions>> {
    let Some(place) = place(settings)? else { return Ok(None) };
    let checkpoint = settings.jobs_checkpoint.as_deref().map(seconds).transpose()?;
    let keep = settings.jobs_keep.as_deref().map(seconds).transpose()?;
    if settings.jobs_slots == Some(0) {
        return Err(Failure::usage("--jobs-slots 0: jobs would never be done: use 1 or more"));
    }
    Ok(Some(JobsOptions {
        at_once: settings.jobs_slots,
        checkpoint: checkpoint.unwrap_or(JOB_CHECKPOINT),
        keep: keep.unwrap_or(JOB_KEEP),
        ..JobsOptions::new(place)
    }))
}

fn place(settings: &Settings) -> Outcome<Option<JobsPlace>> {
    match (&settings.jobs, &settings.jobs_nats) {
        (None, None) => Ok(None),
        (Some(folder), None) => Ok(Some(JobsPlace::Folder(folder.clone()))),
        (folder, Some(url)) => nats(settings, folder.as_deref(), url).map(Some),
    }
}

/// Jobs on NATS; a folder is for recordings on their way there.
#[cfg(feature = "nats")]
fn nats(settings: &Settings, folder: Option<&std::path::Path>, url: &str) -> Outcome<JobsPlace> {
    if settings.jobs_nats_user.is_some() != settings.jobs_nats_password.is_some() {
        return Err(Failure::usage("--jobs-nats-user and --jobs-nats-password belong together"));
    }
    let link = voce_jobs::nats::LinkOptions {
        url: url.to_owned(),
        creds: settings.jobs_nats_creds.clone(),
        user: settings.jobs_nats_user.clone().zip(settings.jobs_nats_password.clone()),
        token: settings.jobs_nats_token.clone(),
        tls_ca: settings.jobs_nats_ca.clone(),
        prefix: settings.jobs_nats_prefix.clone().unwrap_or_else(|| "voce".into()),
        name: "voce serve".into(),
        ..Default::default()
    };
    let scratch = folder.map_or_else(|| std::env::temp_dir().join("voce-jobs"), std::path::Path::to_owned);
    let model = settings.jobs_model.clone().unwrap_or_else(|| crate::embedded::EAR.to_owned());
    Ok(JobsPlace::Nats { link: Box::new(link), scratch, model })
}

#[cfg(not(feature = "nats"))]
fn nats(_: &Settings, _: Option<&std::path::Path>, url: &str) -> Outcome<JobsPlace> {
    Err(Failure::usage(format!("--jobs-nats {url}: this build has no NATS: use --jobs FOLDER")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_off_or_in_one_place() {
        assert!(options(&Settings::default()).unwrap().is_none());
        let folder =
            Settings { jobs: Some("here".into()), jobs_checkpoint: Some("10s".into()), ..Default::default() };
        let found = options(&folder).unwrap().unwrap();
        assert!(matches!(found.place, JobsPlace::Folder(_)));
        assert_eq!((found.checkpoint.as_secs(), found.keep), (10, JOB_KEEP));
        assert!(options(&Settings { jobs_slots: Some(0), ..folder.clone() }).is_err());
        assert!(options(&Settings { jobs_keep: Some("soon".into()), ..folder }).is_err());
    }
}
