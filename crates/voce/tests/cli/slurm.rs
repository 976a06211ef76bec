//! An array job of a real SLURM: `voce bulk` in each of its tasks, killed in the middle and submitted again. Skipped by name
//! where SLURM and munge are not installed (Debian: slurmctld slurmd slurm-client munge), or where we are not root.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::patience::{LIMIT, output};
use crate::sandbox::{Sandbox, arg, stderr};

/// Tasks of the array.
const TASKS: usize = 3;
/// Units of the list.
const UNITS: usize = 24;

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Ends with the test.
struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cluster of one node on this machine.
struct Slurm {
    config: PathBuf,
    _daemons: [Daemon; 3],
}

impl Slurm {
    #[allow(clippy::print_stderr)]
    fn start(s: &Sandbox) -> Option<Self> {
        let programs = ["munged", "slurmctld", "slurmd", "sbatch", "scontrol"].map(find);
        let id = Command::new("id").arg("-u").output().ok()?;
        if programs.iter().any(Option::is_none) || id.stdout.trim_ascii() != b"0" {
            eprintln!("skipped: SLURM and munge are not installed, or this is not root");
            return None;
        }
        let [munged, slurmctld, slurmd, ..] = programs.map(Option::unwrap);
        let dir = s.out("slurm");
        for folder in ["", "state", "spool", "munge"] {
            std::fs::create_dir_all(dir.join(folder)).unwrap();
        }
        let (key, socket) = (dir.join("munge/key"), dir.join("munge/socket"));
        std::fs::write(&key, [42; 128]).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
        let flag = |name: &str, file: &str| format!("--{name}={}", dir.join("munge").join(file).display());
        let munge = Daemon::start(
            Command::new(munged)
                .args(["--foreground", "--force", &flag("key-file", "key"), &flag("socket", "socket")])
                .args([flag("pid-file", "pid"), flag("log-file", "log"), flag("seed-file", "seed")]),
        );
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let name = name.trim().split('.').next().unwrap();
        let ports = [(); 2].map(|()| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        });
        let config = dir.join("slurm.conf");
        let at = dir.display();
        let text = format!(
            "ClusterName=voce\nSlurmctldHost={name}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             SlurmctldPort={}\nSlurmdPort={}\nAuthType=auth/munge\nAuthInfo=socket={}\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
             SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd.log\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nMpiDefault=none\nReturnToService=2\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n\
             SwitchType=switch/none\nKillWait=2\nSchedulerParameters=sched_interval=1\n\
             NodeName={name} NodeAddr=127.0.0.1 CPUs={TASKS} State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            ports[0],
            ports[1],
            socket.display(),
        );
        std::fs::write(&config, text).unwrap();
        let daemon = |program: &Path| Daemon::start(Command::new(program).args(["-D", "-f", arg(&config)]));
        let daemons = [munge, daemon(&slurmctld), daemon(&slurmd)];
        Some(Self { config, _daemons: daemons })
    }

    /// A command of SLURM; it waits for the controller by itself, again and again where that takes longer.
    fn run(&self, s: &Sandbox, program: &str, args: &[&str]) -> String {
        let environment = s.command(&[]);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "{program} {args:?} reaches no controller");
            let mut command = Command::new(program);
            for (name, value) in environment.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            let done = output(command.env("SLURM_CONF", &self.config).args(args).stdin(Stdio::null()));
            if done.status.success() {
                return String::from_utf8(done.stdout).unwrap();
            }
            let said = stderr(&done);
            let is_early = ["Unable to contact", "Connection refused", "munge", "Protocol authentication"];
            assert!(is_early.iter().any(|text| said.contains(text)), "{program} {args:?}: {said}");
        }
    }
}

fn manifest(s: &Sandbox) -> PathBuf {
    let clips = ["1867-154075-0003.opus", "3947-13262-0016.opus", "5789-70653-0013.opus"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech");
    let mut text = String::new();
    for i in 0..UNITS {
        let (path, offset) = (folder.join(clips[i % clips.len()]), (i / clips.len()) as f64 * 0.1);
        let line =
            json!({"id": format!("unit-{i}"), "audio_filepath": path, "offset": offset, "duration": 1.0});
        writeln!(text, "{line}").unwrap();
    }
    let path = s.out("list.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

fn units(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let files = entries.map(|e| (e.file_name().into_string().unwrap(), e.path()));
    files.filter(|(n, _)| n.starts_with("unit-")).map(|(n, p)| (n, std::fs::read(p).unwrap())).collect()
}

#[test]
fn an_array_that_is_killed_and_submitted_again_does_every_unit_once() {
    let s = Sandbox::new();
    let Some(slurm) = Slurm::start(&s) else { return };
    let (list, want, dir) = (manifest(&s), s.out("serial"), s.out("texts"));
    let done = s.run(&["bulk", "-q", arg(&list), "-o", arg(&want), "--streams", "1"]);
    assert!(done.status.success(), "{}", stderr(&done));
    let said = s.out("said");
    assert!(Command::new("mkfifo").arg(&said).status().unwrap().success());
    let voce = assert_cmd::cargo::cargo_bin!("voce");
    let script = |log: &str| {
        format!("{} bulk -v {} -o {} --streams 1 2> {log}", voce.display(), list.display(), dir.display())
    };
    let (output, array) = (s.out("%A_%a.log"), format!("--array=0-{}", TASKS - 1));
    let common = [array.as_str(), "--ntasks=1", "--cpus-per-task=1", "--output", arg(&output), "--parsable"];
    let first = script(arg(&said));
    let job = slurm.run(&s, "sbatch", &[&common[..], &["--wrap", &first]].concat());
    // Killed with results there and others on their way.
    let mut lines = BufReader::new(std::fs::File::open(&said).unwrap()).lines().map(|l| l.unwrap());
    assert_eq!(lines.by_ref().filter(|l| l.contains("kept")).take(4).count(), 4);
    slurm.run(&s, "scancel", &["--signal=KILL", "--full", job.trim()]);
    // All of them have gone once nobody has the pipe open.
    lines.for_each(drop);
    let before = units(&dir);
    assert!((4..UNITS).contains(&before.len()), "{}", before.len());
    let second = script("/dev/null");
    slurm.run(&s, "sbatch", &[&common[..], &["--wait", "--wrap", &second]].concat());
    assert_eq!(units(&dir), units(&want));
    assert_eq!(units(&want).len(), UNITS);
    let lists = (0..TASKS).map(|i| dir.join(format!("results-{i}-of-{TASKS}.jsonl")));
    assert_eq!(lists.map(|l| std::fs::read_to_string(l).unwrap().lines().count()).sum::<usize>(), UNITS);
}
