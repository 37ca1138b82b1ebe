//! Who started this rank: what each launcher says in the environment, and what follows from it.

/// A launcher, by the variables that it sets.
struct Dialect {
    name: &'static str,
    /// What a user can do about variables that are missing.
    remedy: &'static str,
    rank: &'static str,
    /// Of these and the lists below the first that is set counts.
    size: &'static [&'static str],
    local_size: &'static [&'static str],
    hosts: &'static [&'static str],
    /// What tells this job from others: at least one of each list.
    needs: &'static [&'static [&'static str]],
    /// What tells this job from others on all its hosts, where set.
    job: &'static [&'static str],
    /// What does so on one host only. A restart count differs between hosts, if only one of them had to restart.
    here: &'static [&'static str],
    /// Lists of hosts, whose first has rank 0, and then other ways to name that host.
    first_host: (&'static [&'static str], &'static [&'static str]),
}

/// In the order in which they count: whoever is started by one inside another belongs to the inner one.
const DIALECTS: [Dialect; 5] = [
    Dialect {
        name: "rankpact run",
        remedy: "start this program with `rankpact run`, or set all of them",
        rank: "RANKPACT_RANK",
        size: &["RANKPACT_WORLD_SIZE"],
        local_size: &[],
        hosts: &[],
        needs: &[&["RANKPACT_RENDEZVOUS"]],
        job: &["RANKPACT_JOB"],
        here: &[],
        first_host: (&[], &[]),
    },
    Dialect {
        name: "torchrun",
        remedy: "start this program with torchrun, or set all of them",
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_size: &["LOCAL_WORLD_SIZE"],
        hosts: &[],
        needs: &[&["MASTER_ADDR"], &["MASTER_PORT"]],
        job: &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"],
        here: &["TORCHELASTIC_RESTART_COUNT"],
        first_host: (&[], &[]),
    },
    Dialect {
        name: "Open MPI",
        remedy: "start this program with mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
        needs: &[&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]],
        job: &[
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_orte_precondition_transports",
        ],
        here: &[],
        first_host: (&[], &[]),
    },
    Dialect {
        name: "PMI",
        remedy: "MPICH's mpiexec names its jobs nowhere: give it -genv RANKPACT_JOB with 32 random hexadecimal digits",
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_size: &["MPI_LOCALNRANKS"],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        needs: &[&[
            "RANKPACT_JOB",
            "PMI_JOBID",
            "PALS_APID",
            "PMI_PORT",
            "MASTER_PORT",
        ]],
        job: &[
            "RANKPACT_JOB",
            "PMI_JOBID",
            "PALS_APID",
            "MASTER_ADDR",
            "MASTER_PORT",
        ],
        here: &["PMI_PORT"],
        first_host: (SLURM_LISTS, &["SLURM_LAUNCH_NODE_IPADDR"]),
    },
    Dialect {
        name: "Slurm",
        remedy: "start this program with srun",
        rank: "SLURM_PROCID",
        // Of the step, which may be smaller than the job.
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_size: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        needs: &[
            &["SLURM_JOB_ID", "SLURM_JOBID"],
            // Not there in a batch script, which is no rank, whatever SLURM_PROCID says.
            &["SLURM_STEP_ID", "SLURM_STEPID"],
        ],
        job: &[
            "SLURM_JOB_ID",
            "SLURM_JOBID",
            "SLURM_STEP_ID",
            "SLURM_STEPID",
            "SLURM_RESTART_COUNT",
        ],
        here: &[],
        first_host: (SLURM_LISTS, &["SLURM_LAUNCH_NODE_IPADDR"]),
    },
];

const SLURM_LISTS: &[&str] = &[
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
];

/// What the launcher of this rank has told it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Launched {
    pub(super) by: &'static str,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Whether all ranks are known to be on this host.
    pub(super) one_host: bool,
    /// What all ranks on all hosts share and no other job has; empty if the launcher tells nothing of the kind.
    pub(super) job: String,
    /// What all ranks of one host share, and no other job there, nor an earlier life of this one.
    pub(super) here: String,
    /// The host of rank 0, where the launcher tells.
    pub(super) first_host: Option<String>,
}

/// The variables, of which an empty one is as good as none.
pub(super) type Vars<'a> = dyn Fn(&str) -> Option<String> + 'a;

impl Launched {
    /// # Errors
    /// One line that says what is set, what is missing or wrong, and what to do.
    pub(super) fn find(var: &Vars<'_>) -> Result<Self, String> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let begun = DIALECTS.iter().find(|dialect| dialect.is_begun(&var));
        match begun {
            Some(dialect) => dialect.read(&var),
            None => {
                let ranks: Vec<_> = DIALECTS.iter().map(|dialect| dialect.rank).collect();
                Err(format!(
                    "this process was not started as a rank: none of {} is set; start it with `rankpact run`, torchrun, \
                     mpirun or srun",
                    ranks.join(", ")
                ))
            }
        }
    }
}

impl Dialect {
    fn is_begun(&self, var: &Vars<'_>) -> bool {
        // Slurm gives the second of its sizes also to processes that are no ranks.
        let size = self.size.first();
        var(self.rank).is_some() || size.is_some_and(|name| var(name).is_some())
    }

    fn missing(&self, var: &Vars<'_>) -> Vec<String> {
        let rank: &[&str] = &[self.rank];
        let all = [rank, self.size]
            .into_iter()
            .chain(self.needs.iter().copied());
        all.filter(|names| names.iter().all(|name| var(name).is_none()))
            .map(|names| names.join(" or "))
            .collect()
    }

    fn read(&self, var: &Vars<'_>) -> Result<Launched, String> {
        let missing = self.missing(var);
        if !missing.is_empty() {
            return Err(self.half_set(&missing, var));
        }
        let number = |names: &[&str]| {
            let found = names.iter().find_map(|name| Some((*name, var(name)?)));
            let parse = |(name, text): (&str, String)| {
                text.parse::<usize>()
                    .map_err(|_| format!("{name} is `{text}`, not a number"))
            };
            found.map(parse).transpose()
        };
        let (Some(rank), Some(size)) = (number(&[self.rank])?, number(self.size)?) else {
            return Err(self.half_set(&missing, var));
        };
        if rank >= size {
            return Err(format!(
                "{} is {rank}, but there are {size} ranks, counted from 0",
                self.rank
            ));
        }
        let set = |names: &[&str]| {
            let pairs = names
                .iter()
                .filter_map(|name| Some(format!("{name}={}", var(name)?)));
            pairs.collect::<Vec<_>>().join(" ")
        };
        let job = set(self.job);
        Ok(Launched {
            by: self.name,
            rank,
            size,
            one_host: number(self.local_size)? == Some(size)
                || number(self.hosts)? == Some(1)
                || size == 1,
            here: format!("{} {job} {}", self.name, set(self.here)),
            job,
            first_host: self.first_host(var),
        })
    }

    fn half_set(&self, missing: &[String], var: &Vars<'_>) -> String {
        let names = [self.rank].into_iter().chain(self.size.iter().copied());
        let names = names.chain(self.needs.iter().copied().flatten().copied());
        let set: Vec<_> = names.filter(|name| var(name).is_some()).collect();
        let whole = DIALECTS
            .iter()
            .find(|other| other.is_begun(var) && other.missing(var).is_empty());
        let otherwise = whole.map_or(String::new(), |other| {
            format!(
                "; or unset {} to join as a rank of {}",
                set.join(" and "),
                other.name
            )
        });
        format!(
            "the variables of {} are set in part: {} set, {} missing; {}{otherwise}",
            self.name,
            set.join(", "),
            missing.join(", "),
            self.remedy
        )
    }

    fn first_host(&self, var: &Vars<'_>) -> Option<String> {
        let (lists, names) = self.first_host;
        let listed = lists.iter().find_map(|name| first_of(&var(name)?));
        listed.or_else(|| names.iter().find_map(|name| var(name)))
    }
}

/// The first host of a list such as `gpu[007-009,12],login`.
fn first_of(list: &str) -> Option<String> {
    let first = match list.split_once(['[', ',']) {
        Some((prefix, rest)) if list[prefix.len()..].starts_with('[') => {
            let (numbers, behind) = rest.split_once(']')?;
            let number = numbers.split(['-', ',']).next()?;
            let suffix = behind.split(',').next()?;
            format!("{prefix}{number}{suffix}")
        }
        Some((first, _)) => first.to_owned(),
        None => list.to_owned(),
    };
    // Several brackets in one name are legal and rare.
    (!first.is_empty() && !first.contains(['[', ']'])).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("gpu7", "gpu7"),
            ("gpu7,gpu8", "gpu7"),
            ("gpu[007-009,12],login", "gpu007"),
            ("gpu[3,5]-ib,x", "gpu3-ib"),
            ("a,gpu[3,5]", "a"),
        ] {
            assert_eq!(first_of(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "rack[1-2]node[3-4]", "gpu[1-2"] {
            assert_eq!(first_of(list), None, "{list}");
        }
    }
}
