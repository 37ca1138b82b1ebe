use super::*;
use crate::options::Waiting;

fn from(vars: &[(&str, &str)]) -> Result<Join, Error> {
    Join::from_vars(|wanted| {
        let found = vars.iter().rfind(|(name, _)| *name == wanted);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn join(settings: &[(&str, &str)]) -> Result<Join, Error> {
    let needed = [
        ("RANKPACT_RANK", "1"),
        ("RANKPACT_WORLD_SIZE", "2"),
        ("RANKPACT_RENDEZVOUS", "file:///there"),
    ];
    from(&[&needed, settings].concat())
}

#[test]
fn the_environment_sets_how_a_rank_waits() {
    let options = join(&[]).expect("nothing else is needed").options;
    assert_eq!(options, Options::default());
    let options = join(&[
        ("RANKPACT_WAIT", "park"),
        ("RANKPACT_SPIN_US", "15"),
        ("RANKPACT_YIELD_US", "0"),
    ])
    .expect("all are right")
    .options;
    assert_eq!(options.waiting, Waiting::Park);
    assert_eq!(options.spin, Some(Duration::from_micros(15)));
    assert_eq!(options.yields, Some(Duration::ZERO));
}

#[test]
fn a_setting_that_makes_no_sense_is_named_with_its_value() {
    for (name, value) in [
        ("RANKPACT_WAIT", "dozing"),
        ("RANKPACT_SPIN_US", "20us"),
        ("RANKPACT_SPIN_US", ""),
        ("RANKPACT_YIELD_US", "-1"),
        ("RANKPACT_YIELD_US", "1.5"),
        ("RANKPACT_TIMEOUT", "soon"),
        ("RANKPACT_PATH", "pigeon"),
        ("RANKPACT_ENGINE", "steam"),
    ] {
        let error = join(&[(name, value)]).expect_err(name);
        assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
        let line = error.to_string();
        assert!(
            line.contains(name) && line.contains(&format!("`{value}`")),
            "{line}"
        );
    }
}

/// What torchrun sets for rank 5 of 8.
const TORCHRUN: [(&str, &str); 12] = [
    ("LOCAL_RANK", "5"),
    ("RANK", "5"),
    ("GROUP_RANK", "0"),
    ("ROLE_RANK", "5"),
    ("ROLE_NAME", "default"),
    ("LOCAL_WORLD_SIZE", "8"),
    ("WORLD_SIZE", "8"),
    ("GROUP_WORLD_SIZE", "1"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
    ("TORCHELASTIC_RUN_ID", "none"),
];

/// What `mpirun` of Open MPI 4.1.4 sets for rank 1 of 2, among others.
const OPEN_MPI: [(&str, &str); 9] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_NODE_RANK", "1"),
    ("OMPI_MCA_ess_base_jobid", "974979073"),
    (
        "OMPI_MCA_orte_precondition_transports",
        "e0ef102cbafa25dc-4141af000f067ec9",
    ),
    ("PMIX_NAMESPACE", "974979073"),
    ("PMIX_RANK", "1"),
];

/// What `mpiexec.hydra` of MPICH 4.0.2 sets for rank 1 of 2: all of it.
const HYDRA: [(&str, &str); 7] = [
    ("HYDI_CONTROL_FD", "7"),
    ("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "node7"),
    ("MPI_LOCALNRANKS", "2"),
    ("MPI_LOCALRANKID", "1"),
    ("PMI_FD", "8"),
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "2"),
];

/// What `srun` sets for task 3 of 4 on two hosts, among others.
const SRUN: [(&str, &str); 13] = [
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_JOBID", "4711"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEPID", "0"),
    ("SLURM_PROCID", "3"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_NNODES", "2"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_JOB_NODELIST", "gpu[006-009]"),
    ("SLURM_STEP_NODELIST", "gpu[007,009]"),
    ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"),
];

fn key(vars: &[(&str, &str)]) -> String {
    match from(vars).expect("all is set").rendezvous {
        Rendezvous::Key(key) => key,
        other => panic!("{other:?}"),
    }
}

fn address(vars: &[(&str, &str)]) -> (String, String) {
    match from(vars).expect("all is set").rendezvous {
        Rendezvous::Address { address, token } => (address, token),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(vars: &[(&str, &str)], parts: &[&str]) {
    let error = from(vars).expect_err("something is wrong");
    assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for part in parts {
        assert!(line.contains(part), "no {part}: {line}");
    }
}

fn without<'a>(vars: &[(&'a str, &'a str)], names: &[&str]) -> Vec<(&'a str, &'a str)> {
    let kept = vars.iter().filter(|(name, _)| !names.contains(name));
    kept.copied().collect()
}

#[test]
fn every_launcher_tells_which_rank_this_is() {
    let slurm_alone = [&SRUN[..], &[("SLURM_STEP_NUM_NODES", "1")]].concat();
    let mpich = [
        &HYDRA[..],
        &[("RANKPACT_JOB", "00112233445566778899aabbccddeeff")],
    ]
    .concat();
    for (vars, rank, size) in [
        (&TORCHRUN[..], 5, 8),
        (&OPEN_MPI, 1, 2),
        (&mpich, 1, 2),
        (&slurm_alone, 3, 4),
    ] {
        let join = from(vars).expect("all is set");
        assert_eq!((join.rank, join.size), (rank, size));
        assert!(matches!(join.rendezvous, Rendezvous::Key(_)), "{join:?}");
    }
}

#[test]
fn jobs_of_one_host_meet_under_what_only_they_have() {
    for (vars, changed) in [
        (&TORCHRUN[..], ("MASTER_PORT", "29501")),
        (&TORCHRUN, ("MASTER_ADDR", "localhost")),
        (&TORCHRUN, ("TORCHELASTIC_RUN_ID", "b")),
        (&TORCHRUN, ("TORCHELASTIC_RESTART_COUNT", "1")),
        (&OPEN_MPI, ("PMIX_NAMESPACE", "974979074")),
        (&OPEN_MPI, ("OMPI_MCA_ess_base_jobid", "974979074")),
    ] {
        assert_ne!(key(vars), key(&[vars, &[changed]].concat()), "{changed:?}");
    }
    for (vars, rank) in [(&TORCHRUN[..], "RANK"), (&OPEN_MPI, "OMPI_COMM_WORLD_RANK")] {
        assert_eq!(key(vars), key(&[vars, &[(rank, "0")]].concat()));
    }
}

#[test]
fn ranks_whose_master_is_this_host_by_any_account_meet_in_a_folder() {
    let by_hand = without(&TORCHRUN, &["LOCAL_WORLD_SIZE"]);
    for host in ["localhost", "127.0.0.1", "::1"] {
        key(&[&by_hand[..], &[("MASTER_ADDR", host)]].concat());
    }
    refused(&by_hand, &["RANKPACT_PORT", "node7", "LOCAL_WORLD_SIZE"]);
}

#[test]
fn ranks_of_several_hosts_meet_at_the_master_with_the_given_or_a_derived_token() {
    let two_hosts = [
        &TORCHRUN[..],
        &[("LOCAL_WORLD_SIZE", "4"), ("RANKPACT_PORT", "4000")],
    ]
    .concat();
    let with_token = [&two_hosts[..], &[("RANKPACT_TOKEN", "secret")]].concat();
    assert_eq!(
        address(&with_token),
        ("node7:4000".to_owned(), "secret".to_owned())
    );
    let (_, derived) = address(&two_hosts);
    assert!(derived.contains("29500"), "{derived}");
    // Only the host that had to restart counts it.
    let restarted = [&two_hosts[..], &[("TORCHELASTIC_RESTART_COUNT", "1")]].concat();
    assert_eq!(address(&restarted).1, derived);
    let other_job = [&two_hosts[..], &[("TORCHELASTIC_RUN_ID", "b")]].concat();
    assert_ne!(address(&other_job).1, derived);
    let new_address = [&two_hosts[..], &[("MASTER_ADDR", "fd00::7")]].concat();
    assert_eq!(address(&new_address).0, "[fd00::7]:4000");

    let slurm = [&SRUN[..], &[("RANKPACT_PORT", "4000")]].concat();
    let (place, token) = address(&slurm);
    assert_eq!(place, "gpu007:4000");
    assert!(token.contains("4711"), "{token}");
    let told = [&slurm[..], &[("MASTER_ADDR", "gpu009")]].concat();
    assert_eq!(address(&told).0, "gpu009:4000");
    let unlisted = without(&slurm, &["SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"]);
    assert_eq!(address(&unlisted).0, "10.0.0.1:4000");

    let mpi = [&OPEN_MPI[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
    refused(&mpi, &["MASTER_ADDR", "Open MPI"]);
    refused(
        &[&mpi[..], &[("MASTER_ADDR", "n")]].concat(),
        &["RANKPACT_PORT", " n"],
    );
    refused(
        &[&two_hosts[..], &[("RANKPACT_PORT", "x")]].concat(),
        &["RANKPACT_PORT", "`x`"],
    );
}

#[test]
fn a_rendezvous_that_is_given_goes_before_what_the_launcher_tells() {
    for vars in [&TORCHRUN[..], &OPEN_MPI, &SRUN] {
        let folder = [vars, &[("RANKPACT_RENDEZVOUS", "file:///there")]].concat();
        assert_eq!(
            from(&folder).expect("all is set").rendezvous,
            Rendezvous::Folder("/there".into())
        );
        let place = [vars, &[("RANKPACT_RENDEZVOUS", "tcp://n:1")]].concat();
        assert_eq!(address(&place).0, "n:1");
        let wrong = [vars, &[("RANKPACT_RENDEZVOUS", "there")]].concat();
        refused(&wrong, &["RANKPACT_RENDEZVOUS", "`there`"]);
    }
    let explicit = [("RANKPACT_RENDEZVOUS", "tcp://n:1")];
    let error = join(&explicit).expect_err("no token").to_string();
    assert!(error.contains("RANKPACT_TOKEN"), "{error}");
}

#[test]
fn launchers_inside_launchers_count_from_the_inside() {
    let explicit = [
        ("RANKPACT_RANK", "0"),
        ("RANKPACT_WORLD_SIZE", "3"),
        ("RANKPACT_RENDEZVOUS", "file:///there"),
    ];
    let all = [&explicit[..], &TORCHRUN, &OPEN_MPI, &HYDRA, &SRUN].concat();
    assert_eq!(from(&all).expect("all is set").size, 3);
    let all = [&SRUN[..], &HYDRA, &OPEN_MPI, &TORCHRUN].concat();
    assert_eq!(from(&all).expect("all is set").size, 8);
    let all = [&SRUN[..], &OPEN_MPI].concat();
    assert_eq!(from(&all).expect("all is set").size, 2);
    // As batch scripts do it.
    let master = [
        ("MASTER_ADDR", "gpu007"),
        ("MASTER_PORT", "29500"),
        ("RANKPACT_PORT", "4000"),
    ];
    assert_eq!(address(&[&SRUN[..], &master].concat()).0, "gpu007:4000");
}

#[test]
fn variables_set_in_part_are_named_with_those_that_are_missing() {
    refused(
        &[],
        &["RANKPACT_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"],
    );
    refused(
        &[("RANKPACT_RANK", "0")],
        &[
            "RANKPACT_RANK set",
            "RANKPACT_WORLD_SIZE, RANKPACT_RENDEZVOUS missing",
        ],
    );
    refused(
        &[("WORLD_SIZE", "2"), ("MASTER_ADDR", "n")],
        &[
            "torchrun",
            "WORLD_SIZE, MASTER_ADDR set",
            "RANK, MASTER_PORT missing",
        ],
    );
    // From two launchers, of which neither is whole, and of which one is.
    let mixed = [("RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    refused(&mixed, &["torchrun", "RANK set", "WORLD_SIZE"]);
    let mixed = [&[("WORLD_SIZE", "2")], &OPEN_MPI[..]].concat();
    refused(&mixed, &["torchrun", "unset WORLD_SIZE", "Open MPI"]);
    for (vars, name) in [
        (&TORCHRUN[..], "RANK"),
        (&TORCHRUN, "WORLD_SIZE"),
        (&TORCHRUN, "MASTER_ADDR"),
        (&TORCHRUN, "MASTER_PORT"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_RANK"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_SIZE"),
        (&HYDRA, "PMI_RANK"),
        (&HYDRA, "PMI_SIZE"),
    ] {
        refused(&without(vars, &[name]), &["missing", name]);
        refused(&[vars, &[(name, "")]].concat(), &["missing", name]);
    }
    refused(
        &without(&OPEN_MPI, &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
        &["PMIX_NAMESPACE or OMPI_MCA_ess_base_jobid missing"],
    );
    refused(&HYDRA, &["PMI_RANK, PMI_SIZE set", "RANKPACT_JOB", "-genv"]);
    // In a batch script, which is no rank.
    refused(
        &without(
            &SRUN,
            &["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"],
        ),
        &["SLURM_STEP_ID", "srun"],
    );
    refused(
        &without(&SRUN, &["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"]),
        &["not started as a rank"],
    );
}

#[test]
fn ranks_that_are_no_numbers_or_too_large_are_named() {
    for (name, value) in [
        ("RANK", "x"),
        ("RANK", "-1"),
        ("WORLD_SIZE", "2.0"),
        ("LOCAL_WORLD_SIZE", "all"),
    ] {
        refused(&[&TORCHRUN[..], &[(name, value)]].concat(), &[name, value]);
    }
    refused(
        &[&TORCHRUN[..], &[("RANK", "8")]].concat(),
        &["RANK is 8", "8 ranks"],
    );
}
