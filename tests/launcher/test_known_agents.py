from nvrx_launcher.known_agents import KnownAgent, known_agents, publish
from nvrx_launcher.link_folder import make_link_folder, remove_link_folder


def test_an_agent_is_known_while_it_lives_and_has_its_folder():
    folder = make_link_folder()
    try:
        assert not [agent for agent in known_agents() if agent.run_id == "known-here"]
        mine = KnownAgent("known-here", ("127.0.0.1:2379",), 7, "/logs")
        publish(folder, mine)
        assert mine in known_agents()
        assert (folder / "agent.json").stat().st_mode & 0o777 == 0o600
    finally:
        remove_link_folder(folder)
    assert mine not in known_agents()


def test_a_file_of_another_version_is_passed_over():
    folder = make_link_folder()
    try:
        (folder / "agent.json").write_text('{"schema": 99}')
        assert all(agent.run_id for agent in known_agents())
    finally:
        remove_link_folder(folder)
