import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableTopic;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.GroupCoordinatorService;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredTopology;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.slf4j.helpers.NOPLogger;

/**
 * Asks Apache Kafka's classes for streams groups. A line is JSON, and so is its answer.
 *
 * {"request": hex of a StreamsGroupHeartbeatRequest v0, "topics": {name: partitions}} asks for the configured topology.
 * {"members": {id: {"process", "active", "standby"}}, "subtopologies": {id: [tasks, stateful]}, "replicas": n} asks for an
 * assignment.
 */
public class KafkaStreamsGroups {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = JSON.readTree(line);
            Object answer;
            try {
                answer = question.has("request") ? configured(question) : assigned(question);
            } catch (Exception thrown) {
                Throwable error = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
                answer = Map.of("error", error.getClass().getSimpleName(), "message", String.valueOf(error.getMessage()));
            }
            out.append(JSON.writeValueAsString(answer)).append('\n');
        }
        System.out.print(out);
    }

    private static Object configured(JsonNode question) throws Exception {
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(question.get("request").asText()));
        StreamsGroupHeartbeatRequestData request =
            new StreamsGroupHeartbeatRequestData(new ByteBufferAccessor(bytes), (short) 0);
        for (String check : List.of("UsingUnsupportedFeatures", "Invalid")) {
            Method method = GroupCoordinatorService.class.getDeclaredMethod(
                "throwIfStreamsGroupHeartbeatRequestIs" + check, StreamsGroupHeartbeatRequestData.class);
            method.setAccessible(true);
            method.invoke(null, request);
        }
        StreamsTopology topology = StreamsTopology.fromHeartbeatRequest(request.topology());
        ConfiguredTopology configured = InternalTopicManager.configureTopics(
            NOPLogger.NOP_LOGGER, "g", "m", 0L, topology, image(question.get("topics")), Time.SYSTEM);
        Map<String, Object> answer = new TreeMap<>();
        answer.put("ready", configured.isReady());
        configured.topicConfigurationException().ifPresent(problem -> {
            answer.put("status", problem.status().code());
            answer.put("detail", problem.getMessage());
        });
        Map<String, Integer> tasks = new TreeMap<>();
        configured.subtopologies().ifPresent(
            all -> all.forEach((id, subtopology) -> tasks.put(id, subtopology.numberOfTasks())));
        answer.put("tasks", tasks);
        Map<String, Object> missing = new TreeMap<>();
        for (CreatableTopic topic : configured.internalTopicsToBeCreated().values()) {
            Map<String, String> configs = new TreeMap<>();
            topic.configs().forEach(config -> configs.put(config.name(), config.value()));
            missing.put(topic.name(), List.of(topic.numPartitions(), topic.replicationFactor(), configs));
        }
        answer.put("missing", missing);
        answer.put("required", new TreeSet<>(topology.requiredTopics()));
        return answer;
    }

    /** Returns an image that knows the names of topics and their numbers of partitions. */
    private static CoordinatorMetadataImage image(JsonNode topics) {
        return stub(CoordinatorMetadataImage.class, (name, argument) -> {
            if (!name.equals("topicMetadata") || !topics.has((String) argument)) {
                return Optional.empty();
            }
            return Optional.of(stub(CoordinatorMetadataImage.TopicMetadata.class,
                (method, nothing) -> topics.get((String) argument).asInt()));
        });
    }

    private static <T> T stub(Class<T> type, java.util.function.BiFunction<String, Object, Object> answer) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
            (proxy, method, given) -> answer.apply(method.getName(), given == null ? null : given[0])));
    }

    private static Object assigned(JsonNode question) {
        Map<String, AssignmentMemberSpec> members = new HashMap<>();
        question.get("members").properties().forEach(entry -> {
            JsonNode member = entry.getValue();
            members.put(entry.getKey(), new AssignmentMemberSpec(Optional.empty(), Optional.empty(), tasks(member.get("active")),
                tasks(member.get("standby")), Map.of(), member.get("process").asText(), Map.of(), Map.of(), Map.of()));
        });
        ObjectNode subtopologies = (ObjectNode) question.get("subtopologies");
        TopologyDescriber describer = new TopologyDescriber() {
            @Override
            public List<String> subtopologies() {
                List<String> ids = new ArrayList<>();
                subtopologies.fieldNames().forEachRemaining(ids::add);
                return ids;
            }

            @Override
            public int maxNumInputPartitions(String id) {
                return subtopologies.get(id).get(0).asInt();
            }

            @Override
            public boolean isStateful(String id) {
                return subtopologies.get(id).get(1).asBoolean();
            }
        };
        Map<String, String> configs = Map.of("num.standby.replicas", question.get("replicas").asText());
        Map<String, Object> answer = new TreeMap<>();
        new StickyTaskAssignor().assign(new GroupSpecImpl(members, configs), describer).members().forEach((id, assignment) ->
            answer.put(id, List.of(assignment.activeTasks(), assignment.standbyTasks(), assignment.warmupTasks())));
        return answer;
    }

    private static Map<String, Set<Integer>> tasks(JsonNode told) {
        Map<String, Set<Integer>> found = new HashMap<>();
        told.properties().forEach(entry -> {
            Set<Integer> partitions = new TreeSet<>();
            entry.getValue().forEach(partition -> partitions.add(partition.asInt()));
            found.put(entry.getKey(), partitions);
        });
        return found;
    }
}
